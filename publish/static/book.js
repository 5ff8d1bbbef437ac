// What scrolls can be reached with the keyboard.
const SCROLLERS = "pre, table, .cell_output, .output, .picture-of-series, .pst-scrollable-table-container, .bd-article p";
const reach = () => {
  for (const one of document.querySelectorAll(SCROLLERS)) {
    if (one.tabIndex < 0 && one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).overflowX !== "visible") {
      one.tabIndex = 0;
    }
  }
};
for (const event of ["load", "resize", "input", "toggle"]) window.addEventListener(event, reach, true);
