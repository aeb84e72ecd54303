// Search from files. Browsers start no worker there, so a hidden frame runs the worker's script; the theme's script
// looks for IFrameWorker to know that it is in one, and waits for what importScripts returns.
if (location.protocol === "file:") {
  const load = (frame, source) => new Promise((loaded, failed) => {
    const script = frame.document.createElement("script");
    Object.assign(script, { src: source, onload: loaded, onerror: failed });
    frame.document.body.append(script);
  });

  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.body.appendChild(Object.assign(document.createElement("iframe"), { hidden: true }));
      this.scope = this.frame.contentWindow;
      this.scope.importScripts = (...sources) =>
        sources.reduce((before, source) => before.then(() => load(this.scope, source)), Promise.resolve());
      this.scope.postMessage = data => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        this.onmessage?.(event);
      };
      this.started = load(this.scope, url);
    }

    postMessage(data) {
      const event = new MessageEvent("message", { data: structuredClone(data) });
      this.started.then(() => this.scope.dispatchEvent(event));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
