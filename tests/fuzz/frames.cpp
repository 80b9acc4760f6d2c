// What a rank that was let in sends: frames, and the bodies of those that hold something.
#include "transport/bootstrap/frames.hpp"

#include <sys/socket.h>

#include "fuzz.hpp"
#include "transport/bootstrap/questions.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stretto;
  if (size > 60000) return 0;  // fits into the socket's buffer
  int ends[2] = {};
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) std::abort();
  const Socket peer(ends[1]);
  FrameConnection connection(Socket(ends[0]), introduce(1, 3, "fuzz"));
  if (write(peer.descriptor(), data, size) != static_cast<ssize_t>(size)) std::abort();
  peer.end_writing();
  fuzz::parse([&] {
    const auto take = [](FrameKind kind, const Bytes& body) {
      if (kind == FrameKind::question || kind == FrameKind::answer) fuzz::parse([&] { fits(question_of(body), 3); });
      if (kind == FrameKind::result) fuzz::parse([&] { unpacked(body, 3); });
    };
    while (connection.receive(take)) {
    }
  });
  return 0;
}
