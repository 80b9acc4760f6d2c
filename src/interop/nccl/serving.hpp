#pragma once
#include <map>
#include <string>

#include "stretto/plan.hpp"

namespace stretto::nccl_door {

// Which collectives are Stretto's although every rank has a GPU of its own, so that NCCL could do them too, and why. By the
// settings alone (STRETTO_NCCL_SERVE), so that all ranks decide alike.
using Rules = std::map<Collective, std::string>;
// Throws Error(invalid_argument) for a setting that names what is no collective, or what stays NCCL's.
Rules rules_from_settings();
std::string text_of(const Rules& rules);  // the names of the collectives

}  // namespace stretto::nccl_door
