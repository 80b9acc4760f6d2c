#pragma once
#include <cstdint>
#include <string>

#include "stretto/plan.hpp"

// The properties of a call on which the members of a communicator must agree.
namespace stretto {

// "all_reduce of 1000 f32 (sum)". The request's method and size do not matter. op: ignored unless the collective reduces.
std::string call_text(const PlanRequest& request, DType dtype, ReduceOp op);

// Equal on all members if their calls match; calls that do not match have equal signatures once in 65536. Calls that only
// move data may describe the same bytes as elements of other types.
std::uint16_t call_signature(const PlanRequest& request, DType dtype, ReduceOp op);

}  // namespace stretto
