#pragma once
#include <cstdint>

namespace stretto {

// The kinds of messages between workers and servers. The parts of a push that also pulls go as one message each, so that the
// first ones come back while the last ones leave.
enum MessageKind : std::uint32_t { push_part, pull_part, push_and_pull_part, values_of_part, goodbye };

}  // namespace stretto
