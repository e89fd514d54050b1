"""From what was asked for to settled settings: the request, the network, defaults, budget of time and memory."""
