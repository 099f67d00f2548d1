"""What each technique is worth: the books, the counterfactual, the switches, and whether a load pays."""
