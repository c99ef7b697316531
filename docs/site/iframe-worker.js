// Browsers start no worker for a page that was opened from a folder. Search then runs in a frame.
const deliver = (data, to) =>
  setTimeout((copy) => to?.onmessage?.({ data: copy }), 0, structuredClone(data));

if (location.protocol === "file:")
  window.Worker = class {
    constructor(url) {
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => deliver(data, this);
      const script = inside.document.createElement("script");
      script.src = url;
      this.loaded = new Promise((resolve) => (script.onload = resolve));
      inside.document.head.append(script);
    }
    postMessage(data) {
      this.loaded.then(() => deliver(data, this.frame.contentWindow));
    }
    terminate() {
      this.frame.remove();
    }
  };
