"""From a request to resolved settings: the request, the network, defaults, time and memory budget."""
