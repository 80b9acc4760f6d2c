#pragma once
#include <string>

namespace gpt::flight {

// stretto-info flight DIRECTORY: prints who is behind, in what ranks differ, who waits for whom and who is slow. Throws
// Error.
void print_report(const std::string& directory);

}  // namespace gpt::flight
