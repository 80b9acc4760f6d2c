#pragma once
#include <string>
#include <string_view>

// STRETTO_NCCL_REPORT=1: what became of every call that came to the door, and why. Printed to stderr when the program ends.
namespace stretto::nccl_door {

enum class By { stretto, nccl, nobody };

// Why a communicator is Stretto's.
constexpr const char* gpu_is_shared = "ranks share a GPU, which NCCL refuses";

// Counts one call; free where nobody wants the report. why: part of a sentence.
void note(const char* function, By by, std::string_view why);
bool reporting();
std::string report();  // as printed: a line for each function, who did it, and why

}  // namespace stretto::nccl_door
