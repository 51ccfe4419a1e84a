package p2p

// Window is how many segments are under way each way.
const Window = window
