#pragma once
#include <optional>

#include "collectives/execution/execution.hpp"
#include "stretto/communicator.hpp"

// The checks of a call's arguments that need no other rank. Each throws Error(invalid_argument) with a sentence that names
// the values.
namespace stretto {

// Element type, reduction and quantization.
void check_kind(const Call& call, const Quantization& quantization);

// The factor of premul_sum: integers are multiplied by an integer that their type holds.
void check_factor(const Call& call, double factor);

// Null pointers, and buffers that overlap without being in place.
void check_buffers(const Call& call, const PlanRequest& request);

// An operation writes its error state while it reads its input and writes its output: they must not overlap. tensor: the
// name of the error state.
void check_errors_apart(const Call& call, const PlanRequest& request, const std::string& tensor,
                        const Quantizing& quantizing);

// The device of the buffers; nothing if this rank has none. A pointer to no elements is no buffer. The process must use a
// GPU.
std::optional<Device> device_of_buffers(const Call& call, const PlanRequest& request);

}  // namespace stretto
