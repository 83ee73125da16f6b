// Light, dark or as the system says. A classic script in the head, so that no wrong colour flashes before the page is drawn.
"use strict";

(() => {
  const NAME = "racer-theme";
  const THEMES = ["light", "system", "dark"];

  function read() {
    try {
      const kept = localStorage.getItem(NAME);
      return THEMES.includes(kept) ? kept : "system";
    } catch {
      return "system"; // storage is off: the switch works until the page is left
    }
  }

  function apply(theme) {
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
  }

  apply(read());
  document.addEventListener("DOMContentLoaded", () => {
    for (const radio of document.querySelectorAll("input[name=theme]")) {
      radio.checked = radio.value === read();
      radio.addEventListener("change", () => {
        apply(radio.value);
        try {
          localStorage.setItem(NAME, radio.value);
        } catch {
          // see read()
        }
      });
    }
  });
})();
