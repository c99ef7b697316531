// What the pages do by themselves: parts that stay up to date, the theme, times, copies, and a key for
// the search. Without this script every page is complete, in UTC, and as old as its last loading.
"use strict";

const pause = document.getElementById("pause");
const theme = document.getElementById("theme");
const trouble = document.getElementById("trouble");
const streams = new Map();

// The details of a long key have no id: the link before them tells which they are.
function nameDetails(each) {
  return each.id || each.previousElementSibling?.href;
}

function selectFocused(each) {
  const details = each.closest("summary")?.parentElement;
  if (details && !details.id) return `${selectFocused(details.previousElementSibling)} + details > summary`;
  const name = ["id", "href", "data-copy", "aria-label"].find((name) => each.hasAttribute(name));
  return name && `[${name}="${CSS.escape(each.getAttribute(name))}"]`;
}

// A part is HTML of ours, with all values escaped, and the policy of the page runs no script in it.
function replace(part, html) {
  const focused = part.contains(document.activeElement) ? document.activeElement : null;
  const mark = focused && selectFocused(focused);
  const open = new Set([...part.querySelectorAll("details[open]")].map(nameDetails));
  const marked = [...part.querySelectorAll("input:checked")].map((each) => each.value);
  part.innerHTML = html;
  for (const each of part.querySelectorAll("input[type=checkbox]")) each.checked = marked.includes(each.value);
  showMarkers(part);
  for (const each of part.querySelectorAll("details")) if (open.has(nameDetails(each))) each.open = true;
  showTimes(part);
  if (mark) part.querySelector(mark)?.focus({ preventScroll: true });
}

function showMarkers(part) {
  for (const each of part.querySelectorAll("[data-mark]")) each.hidden = false;
}

document.addEventListener("click", (event) => {
  const boxes = event.target.closest("[data-mark]")?.form.querySelectorAll("input[type=checkbox]");
  if (!boxes) return;
  const isAll = [...boxes].every((each) => each.checked);
  for (const each of boxes) each.checked = !isAll;
});

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
    if (!isAnswered) tell("The console does not respond. This page is out of date.");
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
  const folded = search.closest("details");
  if (folded) folded.open = true;
  search.focus();
});

const times = document.getElementById("times");
const UNITS = [["day", 86_400], ["hour", 3_600], ["minute", 60], ["second", 1]];
const ages = new Intl.RelativeTimeFormat("en", { style: "short" });

function ageText(date) {
  const seconds = (date - Date.now()) / 1000;
  const [unit, size] = UNITS.find(([, size]) => Math.abs(seconds) >= size) ?? ["second", 1];
  return ages.format(Math.round(seconds / size), unit);
}

// Elements with a `datetime` show a moment: to the second, to the millisecond, or its hour and minute.
function timeText(each) {
  const utc = new Date(each.getAttribute("datetime"));
  const { precise, clock } = each.dataset;
  if (times.value === "relative" && clock === undefined) return ageText(utc);
  const shift = times.value === "utc" ? 0 : utc.getTimezoneOffset() * 60_000;
  const text = new Date(utc - shift).toISOString().replace("T", " ");
  if (clock !== undefined) return text.slice(11, 16);
  return precise === undefined ? text.slice(0, 19) : times.value === "utc" ? text : text.slice(0, -1);
}

function showTimes(part) {
  for (const each of part.querySelectorAll("[datetime]")) each.textContent = timeText(each);
}

times.value = localStorage.getItem("times") ?? "utc";
times.hidden = false;
times.addEventListener("change", () => {
  localStorage.setItem("times", times.value);
  showAllTimes();
});

function showAllTimes() {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  document.getElementById("zone").textContent = { utc: "UTC", local: `local, ${zone}`, relative: "relative" }[times.value];
  showTimes(document);
}

showAllTimes();
showMarkers(document);
setInterval(() => { if (times.value === "relative" && !document.hidden) showTimes(document); }, 5_000);

// A browser lets pages copy only where they came by TLS or from this machine.
if (navigator.clipboard) {
  document.documentElement.classList.add("scripted");
  document.addEventListener("click", async (event) => {
    const button = event.target.closest(".copy");
    if (!button) return;
    await navigator.clipboard.writeText(button.dataset.copy);
    const copied = document.getElementById("copied");
    copied.textContent = "Copied";
    button.classList.add("done");
    setTimeout(() => { copied.textContent = ""; button.classList.remove("done"); }, 2_000);
  });
}
