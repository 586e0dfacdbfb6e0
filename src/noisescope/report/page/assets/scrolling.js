/* Boxes wider or taller than their place can be reached with the Tab key; those that cannot scroll are passed over. */
"use strict";

noisescope.scrolling = (() => {
  const mark = (box) => {
    const scrolls = box.scrollWidth > box.clientWidth + 1 || box.scrollHeight > box.clientHeight + 1;
    if (scrolls) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  };

  /* Told when a box gets another size: shown, unfolded, or the window resized. */
  const sizes = new ResizeObserver((changes) => changes.forEach(({ target }) => mark(target)));

  const watch = (parent) => parent.querySelectorAll(".scroll").forEach((box) => sizes.observe(box));

  return { watch };
})();
