/* Around the plots: theme, contents, copying commands, resizing, printing. Runs last and starts everything. */
"use strict";

(() => {
  const root = document.documentElement;
  const byId = (id) => document.getElementById(id);
  const dark = matchMedia("(prefers-color-scheme: dark)");

  const theme = () => {
    const shown = root.dataset.theme || (dark.matches ? "dark" : "light");
    root.dataset.shown = shown;
    byId("theme").textContent = shown === "dark" ? "light" : "dark";
    byId("theme").setAttribute("aria-label", `switch to ${shown === "dark" ? "light" : "dark"} colours`);
  };

  const startTheme = () => {
    byId("theme").hidden = false;
    theme();
    byId("theme").addEventListener("click", () => {
      root.dataset.theme = root.dataset.shown === "dark" ? "light" : "dark";
      theme();
      noisescope.redraw();
    });
    dark.addEventListener("change", () => {
      theme();
      noisescope.redraw();
    });
  };

  const startContents = () => {
    const toggle = byId("toc-toggle");
    const links = [...document.querySelectorAll("#toc-list a")];
    const open = (value) => toggle.setAttribute("aria-expanded", String(value));
    toggle.hidden = false;
    toggle.addEventListener("click", () => open(toggle.getAttribute("aria-expanded") !== "true"));
    links.forEach((link) => link.addEventListener("click", () => open(false)));
    const top = (link) => byId(link.hash.slice(1)).getBoundingClientRect().top;
    const mark = () => {
      const atTheEnd = scrollY + innerHeight >= root.scrollHeight - 2;
      const current = links.filter((link) => atTheEnd || top(link) < innerHeight * 0.3).pop();
      links.forEach((link) => link.removeAttribute("aria-current"));
      if (current) current.setAttribute("aria-current", "true");
    };
    addEventListener("scroll", () => requestAnimationFrame(mark), { passive: true });
    mark();
  };

  const select = (element) => getSelection().selectAllChildren(element);

  const startCopying = () => {
    document.querySelectorAll(".copy").forEach((button) => {
      const code = button.previousElementSibling;
      const say = (text) => {
        button.textContent = text;
        setTimeout(() => { button.textContent = "copy"; }, 1500);
      };
      button.hidden = false;
      button.addEventListener("click", () => {
        const byHand = () => { select(code); say("selected"); };
        if (navigator.clipboard) navigator.clipboard.writeText(code.textContent).then(() => say("copied"), byHand);
        else byHand();
      });
    });
  };

  /* Paper is light and has a width of its own; plots are drawn for it, and again for the screen. */
  const startPrinting = () => {
    let chosen = "";
    addEventListener("beforeprint", () => {
      chosen = root.dataset.theme || "";
      root.dataset.theme = "light";
      noisescope.setPrinting(true);
    });
    addEventListener("afterprint", () => {
      if (chosen) root.dataset.theme = chosen;
      else delete root.dataset.theme;
      noisescope.setPrinting(false);
    });
  };

  const startResizing = () => {
    let width = innerWidth;
    let waiting = 0;
    addEventListener("resize", () => {
      if (innerWidth === width) return; /* a phone's address bar comes and goes */
      width = innerWidth;
      clearTimeout(waiting);
      waiting = setTimeout(noisescope.redraw, 120);
    });
  };

  document.querySelectorAll(".script-only").forEach((element) => { element.hidden = false; });
  startTheme();
  if (byId("map-plot")) {
    noisescope.map.start();
    noisescope.panel.start();
  }
  for (const part of ["windows", "charts", "evidence", "growth", "sorting"]) noisescope[part]?.start();
  noisescope.scrolling.watch(document);
  startContents();
  startCopying();
  startPrinting();
  startResizing();
})();
