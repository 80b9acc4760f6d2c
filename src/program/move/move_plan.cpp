#include <algorithm>
#include <map>
#include <set>

#include "core/fail.hpp"
#include "program/move/box.hpp"

// This file has the traffic, the text and the proof of a plan.
namespace stretto {
namespace {

template <class Counts>
std::int64_t sum_of_messages(const MovePlan& plan, Counts counts) {
  std::int64_t sum = 0;
  for (const auto& phase : plan.phases) {
    for (const MoveBlock& block : phase) {
      if (block.source == block.target || !counts(block)) continue;
      sum += plan.bytes(block);
    }
  }
  return sum;
}

const std::vector<Box>* boxes_of(const Division& division, int rank) {
  const auto place = std::find(division.ranks.begin(), division.ranks.end(), rank);
  return place == division.ranks.end() ? nullptr : &division.boxes[static_cast<std::size_t>(place - division.ranks.begin())];
}

bool has(const Division& division, int rank, const Box& box) {
  const std::vector<Box>* boxes = boxes_of(division, rank);
  return boxes != nullptr && std::any_of(boxes->begin(), boxes->end(), [&](const Box& each) { return contains(each, box); });
}

}  // namespace

std::string PassedRecords::name(const MoveBlock& block) { return fmt::format("{} {}", block.tensor, text(block.box)); }

PassedRecords passed_records(const MovePlan& plan, int rank) {
  PassedRecords result;
  std::set<std::string> received;
  for (const auto& phase : plan.phases) {
    for (const MoveBlock& block : phase) {
      if (block.source != rank || !block.from_target || !plan.is_quantized(block)) continue;
      const std::string name = PassedRecords::name(block);
      if (received.contains(name) && result.places.emplace(name, result.bytes).second) result.bytes += plan.bytes(block);
    }
    for (const MoveBlock& block : phase) {
      if (block.target == rank && plan.is_quantized(block)) received.insert(PassedRecords::name(block));
    }
  }
  return result;
}

bool MovePlan::is_quantized(const MoveBlock& block) const {
  const MovedTensor& tensor = tensors[static_cast<std::size_t>(block.tensor)];
  const std::int64_t elements = block.box.elements();
  return block.source != block.target && tensor.format != QuantizedFormat::none &&
         packed_bytes(tensor.format, elements) < elements * static_cast<std::int64_t>(size_of(tensor.dtype));
}

std::int64_t MovePlan::bytes(const MoveBlock& block) const {
  const MovedTensor& tensor = tensors[static_cast<std::size_t>(block.tensor)];
  const std::int64_t elements = block.box.elements();
  return is_quantized(block) ? packed_bytes(tensor.format, elements)
                             : elements * static_cast<std::int64_t>(size_of(tensor.dtype));
}

std::int64_t MovePlan::bytes_out_of(int rank) const {
  return sum_of_messages(*this, [&](const MoveBlock& block) { return block.source == rank; });
}

std::int64_t MovePlan::bytes_into(int rank) const {
  return sum_of_messages(*this, [&](const MoveBlock& block) { return block.target == rank; });
}

std::int64_t MovePlan::bytes_between_nodes(const std::vector<int>& nodes) const {
  return sum_of_messages(*this, [&](const MoveBlock& block) {
    return nodes[static_cast<std::size_t>(block.source)] != nodes[static_cast<std::size_t>(block.target)];
  });
}

std::int64_t MovePlan::buffer_bytes(int rank) const {
  std::int64_t most = 0;
  for (const auto& phase : phases) {
    const MovePlan alone{ranks, tensors, {phase}};
    most = std::max(most, alone.bytes_out_of(rank) + alone.bytes_into(rank));
  }
  return most + passed_records(*this, rank).bytes;
}

std::string MovePlan::to_string() const {
  std::string result;
  for (std::size_t phase = 0; phase < phases.size(); ++phase) {
    for (const MoveBlock& block : phases[phase]) {
      result += fmt::format(
          "phase {}: tensor {} {} {}{}\n", phase, block.tensor, text(block.box),
          block.source == block.target ? fmt::format("stays at {}", block.source)
                                       : fmt::format("from {} to {}", block.source, block.target),
          is_quantized(block) ? fmt::format(" in {}", name(tensors[static_cast<std::size_t>(block.tensor)].format)) : "");
    }
  }
  return result;
}

std::optional<std::string> verify(const MovePlan& plan) {
  std::map<std::pair<int, int>, std::vector<const Box*>> arrived;  // by tensor and rank
  const auto elements_at = [&](int tensor, int rank, const Box& box) {
    std::int64_t sum = 0;
    for (const Box* each : arrived[{tensor, rank}]) {
      if (const auto part = common(*each, box)) sum += part->elements();
    }
    return sum;
  };
  const auto arrived_as = [&](int tensor, int rank, const Box& box) {
    return std::ranges::any_of(arrived[{tensor, rank}], [&](const Box* each) { return *each == box; });
  };
  for (const auto& phase : plan.phases) {
    for (const MoveBlock& block : phase) {
      if (block.tensor < 0 || block.tensor >= static_cast<int>(plan.tensors.size())) {
        return fmt::format("A block names tensor {} of {}.", block.tensor, plan.tensors.size());
      }
      const MovedTensor& tensor = plan.tensors[static_cast<std::size_t>(block.tensor)];
      const bool is_there = block.from_target ? elements_at(block.tensor, block.source, block.box) == block.box.elements()
                                              : has(tensor.from, block.source, block.box);
      if (!is_there) {
        return fmt::format("Rank {} is to send {} of tensor {} to rank {}, and does not have all of it.", block.source,
                           text(block.box), block.tensor, block.target);
      }
      if (block.from_target && tensor.format != QuantizedFormat::none &&
          !arrived_as(block.tensor, block.source, block.box)) {
        return fmt::format(
            "Rank {} is to pass on {} of tensor {}, which has not arrived as one block: its records in {} "
            "would be others.",
            block.source, text(block.box), block.tensor, name(tensor.format));
      }
      if (!has(tensor.to, block.target, block.box)) {
        return fmt::format("Rank {} is to get {} of tensor {}, which is in none of its boxes.", block.target,
                           text(block.box), block.tensor);
      }
    }
    for (const MoveBlock& block : phase) {
      if (elements_at(block.tensor, block.target, block.box) != 0) {
        return fmt::format("Rank {} gets elements of {} of tensor {} twice.", block.target, text(block.box), block.tensor);
      }
      arrived[{block.tensor, block.target}].push_back(&block.box);
    }
  }
  for (int number = 0; number < static_cast<int>(plan.tensors.size()); ++number) {
    const Division& to = plan.tensors[static_cast<std::size_t>(number)].to;
    for (std::size_t i = 0; i < to.ranks.size(); ++i) {
      for (const Box& box : to.boxes[i]) {
        if (const std::int64_t found = elements_at(number, to.ranks[i], box); found != box.elements()) {
          return fmt::format("Rank {} gets {} of the {} elements of {} of tensor {}.", to.ranks[i], found, box.elements(),
                             text(box), number);
        }
      }
    }
  }
  return {};
}

}  // namespace stretto
