// What the pages do by themselves: parts that stay up to date, the theme, and a key for the search.
// Without this script every page is whole; it is then as old as its last loading.
"use strict";

const pause = document.getElementById("pause");
const theme = document.getElementById("theme");
const trouble = document.getElementById("trouble");
const streams = new Map();

// A part is HTML of ours, with all values escaped, and the policy of the page runs no script in it.
function replace(part, html) {
  const focused = part.contains(document.activeElement) ? document.activeElement : null;
  const mark = focused && (focused.id ? `#${CSS.escape(focused.id)}` : focused.getAttribute("href") && `[href="${CSS.escape(focused.getAttribute("href"))}"]`);
  const open = new Set([...part.querySelectorAll("details[open][id]")].map((each) => each.id));
  part.innerHTML = html;
  open.forEach((id) => { const each = document.getElementById(id); if (each) each.open = true; });
  if (mark) part.querySelector(mark)?.focus({ preventScroll: true });
}

function tell(words) {
  trouble.textContent = words;
  trouble.hidden = !words;
}

// Such as a search that has found all that it was to find: it would begin anew if it was asked for.
function isFinal(part) {
  return part.querySelector("[data-final]") !== null;
}

// Each answer has one event and ends; the browser asks again by itself, unless it was refused.
function watch(part) {
  const stream = new EventSource(part.dataset.live);
  let isAnswered = false;
  const hear = (name, act) => stream.addEventListener(name, (event) => { isAnswered = true; act(event); });
  hear("part", (event) => { tell(""); replace(part, event.data); if (isFinal(part)) stream.close(); });
  hear("same", () => tell(""));
  hear("trouble", (event) => tell(event.data));
  stream.onerror = () => {
    if (!isAnswered) tell("The console does not answer; what is shown is old.");
    isAnswered = false;
    if (stream.readyState === EventSource.CLOSED) setTimeout(() => { if (streams.get(part) === stream) watch(part); }, 10_000);
  };
  streams.set(part, stream);
}

const parts = [...document.querySelectorAll("[data-live]")];
let isPaused = false;

function follow() {
  streams.forEach((stream) => stream.close());
  streams.clear();
  if (!isPaused && !document.hidden) parts.filter((part) => !isFinal(part)).forEach(watch);
}

if (parts.length) {
  pause.hidden = false;
  pause.addEventListener("click", () => {
    isPaused = !isPaused;
    pause.setAttribute("aria-pressed", String(isPaused));
    pause.textContent = isPaused ? "Resume" : "Pause";
    follow();
  });
  document.addEventListener("visibilitychange", follow);
  follow();
}

function setTheme(name) {
  if (name) document.documentElement.dataset.theme = name;
  const isDark = name ? name === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  theme.textContent = isDark ? "Light" : "Dark";
  theme.onclick = () => {
    const next = isDark ? "light" : "dark";
    localStorage.setItem("theme", next);
    setTheme(next);
  };
}

theme.hidden = false;
setTheme(localStorage.getItem("theme"));

document.addEventListener("keydown", (event) => {
  const isTyping = event.target.matches("input, textarea, select");
  if (event.key !== "/" || isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  const search = document.querySelector("[data-search]");
  if (!search) return;
  event.preventDefault();
  search.focus();
});
