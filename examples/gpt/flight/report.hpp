#pragma once
#include <string>

namespace gpt::flight {

// stretto-info flight DIRECTORY: who is behind, in what ranks differ, who waits for whom and who is slow. Throws Error.
std::string report_of(const std::string& directory);

}  // namespace gpt::flight
