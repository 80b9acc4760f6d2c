#pragma once

namespace stretto {

// The number of fork()s, since count_forks() was called, between the process that called it and this one. A child inherits
// objects, but neither the threads that serve them nor the right to use their connections: an object that a child must not
// use remembers the number at its construction.
inline constinit int forks = 0;
void count_forks();

}  // namespace stretto
