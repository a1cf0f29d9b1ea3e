// Lets the search run where the site is opened from the disk: browsers start no Worker for file: pages, so the worker's
// script runs in a hidden frame. The search asks for `IFrameWorker` by that name.
window.IFrameWorker = class extends EventTarget {
  constructor(url) {
    super();
    const frame = document.createElement("iframe");
    frame.hidden = true;
    document.body.append(frame);
    const inner = (this.inner = frame.contentWindow);
    inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
    const load = (source) =>
      new Promise((resolve, reject) => {
        const script = inner.document.createElement("script");
        Object.assign(script, { src: new URL(source, document.baseURI).href, onload: resolve, onerror: reject });
        inner.document.body.append(script);
      });
    inner.importScripts = async (...sources) => {
      for (const source of sources) await load(source);
    };
    this.loaded = load(url);
  }

  postMessage(data) {
    this.loaded.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data })));
  }

  terminate() {
    this.inner.frameElement.remove();
  }
};
if (location.protocol === "file:") window.Worker = window.IFrameWorker;
