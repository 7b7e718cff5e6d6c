"""The table of what users meet: its rows, how they are judged, and the page that shows them."""
