// What a process says that connects to rank 0 before it has proved anything.
#include "transport/bootstrap/handshake.hpp"

#include <sys/socket.h>

#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stretto;
  if (size > 60000) return 0;
  static const Hash key = hash_of("a secret");
  int ends[2] = {};
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) std::abort();
  const Socket peer(ends[1]);
  fuzz::parse([&] {
    Arriving arriving(Socket(ends[0]), key);
    if (write(peer.descriptor(), data, size) != static_cast<ssize_t>(size)) std::abort();
    peer.end_writing();
    if (arriving.look() == Arriving::State::came) std::abort();  // nobody guesses the proof
  });
  return 0;
}
