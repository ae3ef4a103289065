/** The colours that were chosen in the settings; none: those of the system. */

const THEME = "symphony-theme";

export function chosenTheme() {
  try {
    return localStorage.getItem(THEME) ?? "";
  } catch {
    return "";
  }
}

export function applyTheme(theme = chosenTheme()) {
  document.documentElement.dataset.theme = theme;
}

export function keepTheme(theme) {
  applyTheme(theme);
  try {
    localStorage.setItem(THEME, theme);
  } catch {
    // full or refused: it holds until the page is left
  }
}
