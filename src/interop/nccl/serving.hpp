#pragma once
#include <map>
#include <string>

#include "stretto/method.hpp"

namespace stretto::nccl_door {

// The collectives that Stretto serves although every rank has its own GPU and NCCL could serve them, each with the reason.
// Only settings decide (STRETTO_NCCL_SERVE; under "auto" also STRETTO_ALGO and STRETTO_DETERMINISTIC), so ranks with the
// same settings decide alike.
using Rules = std::map<Collective, std::string>;
// Throws Error(invalid_argument) if the setting names something that is not a collective, or a collective that remains
// NCCL's.
Rules rules_from_settings();
std::string text_of(const Rules& rules);  // the names of the collectives

}  // namespace stretto::nccl_door
