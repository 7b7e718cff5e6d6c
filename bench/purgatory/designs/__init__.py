"""The designs that are compared: the wheel, the old one, what one would write without either."""
