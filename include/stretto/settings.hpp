#pragma once
#include <string>
#include <vector>

#include "stretto/export.hpp"

// Configuration by environment variables. The tool stretto-info prints the table of all variables.
namespace stretto {

struct Setting {
  const char* name;           // "STRETTO_TIMEOUT"
  const char* meaning;        // one line
  const char* default_value;  // as text
};

// The table of all variables that Stretto reads.
STRETTO_API const std::vector<Setting>& settings();
// The value of a variable: from the environment, or the default.
STRETTO_API std::string setting(const std::string& name);
// Throws Error(invalid_argument) if the environment contains a STRETTO_* variable that is not in the table (for example
// a misspelt name), or a value that cannot be parsed. launch(), run_threads() and connect() call this function.
STRETTO_API void check_settings();

}  // namespace stretto
