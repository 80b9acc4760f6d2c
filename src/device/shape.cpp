#include "stretto/shape.hpp"

#include "core/fail.hpp"

namespace stretto {

void Shape::refuse(std::size_t dimensions) {
  fail(ErrorCode::invalid_argument, "A shape of {} dimensions was asked for; there are at most {}: join some of them.",
       dimensions, most);
}

}  // namespace stretto
