// Browsers start no Worker from a script on the disk. There the search runs in a hidden frame
// instead; without this file, Material for MkDocs would fetch such code from the network.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.loaded = new Promise((resolve) => {
        this.frame.addEventListener("load", () => resolve(this.begin(url)), { once: true });
      });
      document.documentElement.append(this.frame);
    }

    begin(url) {
      const inner = this.frame.contentWindow;
      const load = (source) =>
        new Promise((resolve, reject) => {
          const script = inner.document.createElement("script");
          Object.assign(script, { src: source, onload: resolve, onerror: reject });
          inner.document.head.append(script);
        });
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inner.importScripts = (...sources) =>
        sources.reduce((before, source) => before.then(() => load(source)), Promise.resolve());
      return load(url);
    }

    async postMessage(data) {
      await this.loaded;
      this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
