// What scrolls can be reached with the keyboard.
const scrolls = element => element.scrollWidth > element.clientWidth + 1;
const reach = () => {
  for (const one of document.querySelectorAll(
    "pre, .cell_output .output, .cell_output, .picture-series, .picture-of-series, .pst-scrollable-table-container, table"
  )) {
    if (scrolls(one) && !one.hasAttribute("tabindex")) one.tabIndex = 0;
  }
};
window.addEventListener("load", reach);
window.addEventListener("resize", reach);
