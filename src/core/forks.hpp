#pragma once

namespace stretto {

// How often fork() has made a process from this one's ancestors and this one, since they count: a child inherits objects,
// but neither the threads that serve them nor the right to use their connections. What must not be used after fork()
// remembers the number at which it was made.
inline constinit int forks = 0;
void count_forks();  // from now on

}  // namespace stretto
