// SPDX-License-Identifier: Apache-2.0
// What is wrong with the layout of the present page of the documentation: one line for each problem.
async () => {
  // After the window was resized, scroll bars appear with the next frame.
  await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
  const problems = new Set();
  const width = document.documentElement.clientWidth;
  const name = (element) => `<${element.tagName.toLowerCase()}> "${element.textContent.trim().replace(/\s+/g, " ").slice(0, 60)}"`;
  const isScrolling = (style) => ["auto", "scroll"].includes(style.overflowX);
  const holdsText = (element) => /^(TD|TH|LI|P|DD|DT|PRE|H[1-6])$/.test(element.tagName);

  const checkElement = (element) => {
    const style = getComputedStyle(element);
    const box = element.getBoundingClientRect();
    if (style.display === "none" || style.visibility === "hidden" || style.position === "fixed") return;
    // Text for screen readers only is 1 px wide.
    if (box.width > 1 && (box.right > width + 1 || box.left < -1)) {
      problems.add(`reaches from ${Math.round(box.left)} to ${Math.round(box.right)} px: ${name(element)}`);
      return;
    }
    if (element.clientWidth > 1 && element.scrollWidth > element.clientWidth + 1) {
      if (isScrolling(style)) {
        const borders = parseFloat(style.borderTopWidth) + parseFloat(style.borderBottomWidth);
        if (element.offsetHeight - element.clientHeight - borders < 4) problems.add(`has no visible scroll bar: ${name(element)}`);
        return;
      }
      if (style.overflowX !== "visible") problems.add(`is cut off: ${name(element)}`);
      else if (holdsText(element)) problems.add(`is wider than its box: ${name(element)}`);
    }
    for (const child of element.children) checkElement(child);
  };

  const checkLists = () => {
    for (const list of document.querySelectorAll(".docs-body ul, .docs-body ol")) {
      const items = [...list.children].filter((item) => item.getClientRects().length);
      for (let index = 1; index < items.length; index += 1) {
        const [before, after] = [items[index - 1].getBoundingClientRect(), items[index].getBoundingClientRect()];
        // An item of several lines needs a gap before the next one.
        const gap = before.height > 40 ? 4 : -1;
        if (after.top < before.bottom + gap) problems.add(`items of a list run together: ${name(items[index])}`);
      }
    }
    for (const paragraph of document.querySelectorAll(".docs-body p")) {
      if (/\n\s*(\*|-|#\.) /.test(paragraph.textContent)) problems.add(`a list in a paragraph: ${name(paragraph)}`);
    }
  };

  const checkLinks = (place, links) => {
    const seen = new Set();
    for (const link of links) {
      const page = link.href.split("#")[0];
      if (link.protocol !== "file:" || page === document.baseURI.split("#")[0]) continue;
      if (seen.has(page)) problems.add(`a page is listed twice in ${place}: ${link.textContent.trim()}`);
      seen.add(page);
    }
  };

  if (document.documentElement.scrollWidth > width) {
    problems.add(`the page scrolls horizontally: it is ${document.documentElement.scrollWidth} px wide`);
  }
  checkElement(document.body);
  checkLists();
  checkLinks("the side bar", document.querySelectorAll("#table-of-contents li a"));
  if (/\/html\/index\.html$/.test(new URL(document.baseURI).pathname)) {
    checkLinks("the first page", document.querySelectorAll(".docs-body li a, .docs-body td a"));
  }
  return [...problems];
}
