#pragma once
#include "stretto/tensor.hpp"

namespace stretto {

// Whether it is a tensor that was made without a shape, which has no memory. (One without elements may have none either.)
inline bool is_missing(const Tensor& tensor) { return !tensor && tensor.shape().empty(); }

// Ends the sentences that refuse such a tensor.
inline constexpr const char* why_missing =
    "a parameter's value and gradient are there only while a layer uses the parameter (InUse); other tensors need memory "
    "first";

}  // namespace stretto
