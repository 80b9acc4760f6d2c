#pragma once
#include <string>
#include <vector>

namespace apps::flight {

// stretto-info flight DIRECTORY: who is behind, in what ranks differ, who waits for whom and who is slow. damaged: as in
// read_jobs(). Throws Error.
std::string report_of(const std::string& directory, std::vector<std::string>& damaged);

}  // namespace apps::flight
