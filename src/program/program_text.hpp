#pragma once
#include <string>
#include <vector>

#include "stretto/program.hpp"

namespace stretto {

// What a client sends to executors of a program: all make the same plan of it.
struct ProgramSetup {
  Program program{""};
  std::vector<std::vector<int>> groups;  // the executors of each group
  std::string client;
  double weight = 1;
  int most_in_flight = 2;
  Dispatch dispatch = Dispatch::parallel;
};

std::string to_text(const ProgramSetup& setup);
ProgramSetup setup_from_text(const std::string& text);

}  // namespace stretto
