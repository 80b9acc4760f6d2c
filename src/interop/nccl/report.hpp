#pragma once
#include <string>
#include <string_view>

// STRETTO_NCCL_REPORT=1: counts which library served every call that came to the door, and why. The report goes to stderr
// when the program ends.
namespace stretto::nccl_door {

enum class By { stretto, nccl, nobody };

// A reason for which Stretto serves a communicator.
constexpr const char* gpu_is_shared = "ranks share a GPU, which NCCL refuses";

// Counts one call; does nothing without the report. why: part of a sentence.
void note(const char* function, By by, std::string_view why);
bool reporting();
std::string report();  // the printed text: for each function which library served it, and why

}  // namespace stretto::nccl_door
