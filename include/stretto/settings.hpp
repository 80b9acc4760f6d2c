#pragma once
#include <string>
#include <vector>

#include "stretto/export.hpp"

// Configuration from the environment. stretto-info prints this table.
namespace stretto {

struct Setting {
  const char* name;           // "STRETTO_TIMEOUT"
  const char* meaning;        // one line
  const char* default_value;  // as text
};

// Every variable that Stretto reads; none is read that is not listed here.
STRETTO_API const std::vector<Setting>& settings();
// The value in force: the environment's, or the default.
STRETTO_API std::string setting(const std::string& name);
// Throws Error(invalid_argument) when a STRETTO_* variable is set that is not in the table, or a value cannot be read,
// so that a misspelt one is not silently without effect. Bootstrapping calls it.
STRETTO_API void check_settings();

}  // namespace stretto
