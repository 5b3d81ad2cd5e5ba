"""Small pieces of HTML and SVG for notebooks and pages, in colours that mean the same everywhere."""
