/* A page without plots: what the controls ask of them is nothing. */
"use strict";

const noisescope = (() => {
  const nothing = () => {};
  return { redraw: nothing, setPrinting: nothing };
})();
