#pragma once
#include <cstdint>

#include "layers/checkpoint/files/safetensors.hpp"

// Whole numbers of JSON that others wrote. nlohmann's get() rounds 1.5, and is undefined for 1e300 and for
// 5000000000000000000000. Both throw nlohmann::json::exception.
namespace stretto {

// Negative for numbers from 2^63 on.
template <class Json>
std::int64_t whole_number(const Json& json) {
  return json.template get_ref<const typename Json::number_integer_t&>();
}

template <class Json>
Shape shape_from_json(const Json& json) {
  Shape shape;
  for (const Json& extent : json) shape.push_back(whole_number(extent));
  return shape;
}

}  // namespace stretto
