// Many proofs in parallel. One thread proves all cases that differ only in the root.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>

#include "collectives/proof/root_proofs.hpp"
#include "stretto/planning/proof.hpp"

namespace stretto {
namespace {

bool differ_in_root_alone(const ProofCase& a, const ProofCase& b) {
  PlanRequest request = a.request;
  request.root = b.request.root;
  return request == b.request && a.uneven == b.uneven;
}

struct Group {
  std::size_t begin, end;  // of cases
  std::optional<std::string> fault = std::nullopt;
  std::exception_ptr error = nullptr;
};

std::vector<Group> groups_of(const std::vector<ProofCase>& cases) {
  std::vector<Group> groups;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    if (i == 0 || !differ_in_root_alone(cases[i - 1], cases[i])) groups.push_back({i, i});
    ++groups.back().end;
  }
  return groups;
}

std::optional<std::string> first_fault(const std::vector<ProofCase>& cases, const Group& group) {
  constexpr std::size_t most_parts = 4096;  // parts that are kept
  RootProofs proofs;
  plans::PartPlans parts;
  for (std::size_t i = group.begin; i < group.end; ++i) {
    if (parts.size() > most_parts) parts.forget();
    if (const auto fault = proofs.prove(plans_of(cases[i], parts)))
      return fmt::format("{}, {}", to_string(cases[i]), *fault);
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> prove(const ProofCase& which) {
  if (const auto fault = verify_all_forms(plans_of(which))) return fmt::format("{}, {}", to_string(which), *fault);
  return std::nullopt;
}

std::optional<std::string> prove(const std::vector<ProofCase>& cases, int threads) {
  std::vector<Group> groups = groups_of(cases);
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> failed = false;
  // Threads take the groups in order. So when one has failed, all groups before it have been taken, and will be finished:
  // the first fault is found whatever the threads' speed.
  const auto work = [&] {
    while (!failed) {
      const std::size_t taken = next++;
      if (taken >= groups.size()) return;
      Group& group = groups[taken];
      try {
        group.fault = first_fault(cases, group);
      } catch (...) {
        group.error = std::current_exception();
      }
      if (group.fault || group.error) failed = true;
    }
  };
  std::vector<std::jthread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(work);
  work();
  others.clear();  // joins
  for (Group& group : groups) {
    if (group.error) std::rethrow_exception(group.error);
    if (group.fault) return group.fault;
  }
  return std::nullopt;
}

}  // namespace stretto
