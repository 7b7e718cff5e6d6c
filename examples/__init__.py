"""Programs that show wheeld at work; run them from the root of the checkout."""
