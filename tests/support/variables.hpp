#pragma once
#include <cstdlib>
#include <optional>
#include <string>

namespace stretto {

// Sets or unsets an environment variable while this object lives.
class Variable {
 public:
  Variable(const std::string& name, const std::optional<std::string>& value) : name_(name) {
    if (const char* before = std::getenv(name.c_str())) before_ = before;
    put(value);
  }
  ~Variable() { put(before_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  void put(const std::optional<std::string>& value) const {
    if (value) {
      setenv(name_.c_str(), value->c_str(), 1);
    } else {
      unsetenv(name_.c_str());
    }
  }
  std::string name_;
  std::optional<std::string> before_;
};

}  // namespace stretto
