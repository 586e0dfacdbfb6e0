"""What the HTML page shows, section by section, as tables and figures; `html.py` puts them into the template."""
