#pragma once
#include <string>
#include <vector>

#include "stretto/export.hpp"

// Configuration by environment variables. stretto-info prints this table.
namespace stretto {

struct Setting {
  const char* name;           // "STRETTO_TIMEOUT"
  const char* meaning;        // one line
  const char* default_value;  // as text
};

// All variables that Stretto reads.
STRETTO_API const std::vector<Setting>& settings();
// The value in force: from the environment, or the default.
STRETTO_API std::string setting(const std::string& name);
// Throws Error(invalid_argument) if a STRETTO_* variable is set that is not in the table, so that a misspelt name is
// noticed, or if a value cannot be parsed. launch(), run_threads() and connect() call it.
STRETTO_API void check_settings();

}  // namespace stretto
