#include <algorithm>
#include <map>
#include <set>

#include "core/fail.hpp"
#include "program/move/box.hpp"

namespace stretto {
namespace {

constexpr std::int64_t least_share = 64 << 10;  // bytes: holders of copies share the sending of longer messages only
constexpr std::int64_t least_buffer = 64 << 10;

// A box and the ranks that have it, or are to have it, in the order of the division.
struct Copies {
  Box box;
  std::vector<int> ranks;
};

std::vector<Copies> copies_of(const Division& division) {
  std::vector<Copies> result;
  for (std::size_t i = 0; i < division.ranks.size(); ++i) {
    for (const Box& box : division.boxes[i]) {
      if (box.elements() == 0) continue;
      const auto known = std::find_if(result.begin(), result.end(), [&](const Copies& each) { return each.box == box; });
      (known == result.end() ? result.emplace_back(Copies{box, {}}) : *known).ranks.push_back(division.ranks[i]);
    }
  }
  return result;
}

void check_division(const Division& division, const MovedTensor& tensor, std::size_t number, int ranks, const char* side) {
  require(division.ranks.size() == division.boxes.size(),
          "Tensor {} of a move has {} ranks and {} lists of boxes {}; give each rank one.", number, division.ranks.size(),
          division.boxes.size(), side);
  std::set<int> seen;
  for (std::size_t i = 0; i < division.ranks.size(); ++i) {
    const int rank = division.ranks[i];
    require(0 <= rank && rank < ranks, "Tensor {} of a move names rank {} {}; there are {}.", number, rank, side, ranks);
    require(seen.insert(rank).second, "Tensor {} of a move names rank {} twice {}; give it all of its boxes at once.",
            number, rank, side);
    for (std::size_t b = 0; b < division.boxes[i].size(); ++b) {
      const Box& box = division.boxes[i][b];
      require(box.begin.size() == tensor.shape.size() && box.end.size() == tensor.shape.size() &&
                  contains(whole(tensor.shape), box),
              "Tensor {} of a move has a box {} of rank {} {} that is not inside its shape {}.", number, text(box), rank,
              side, text(whole(tensor.shape)));
      for (std::size_t other = 0; other < b; ++other) {
        require(!common(box, division.boxes[i][other]), "Tensor {} of a move gives rank {} elements of {} twice {}.", number,
                rank, text(box), side);
      }
    }
  }
}

class Planner {
 public:
  Planner(MovePlan& plan, const std::vector<int>& nodes, std::int64_t most_buffer_bytes)
      : plan_(plan), nodes_(nodes), most_(most_buffer_bytes) {}

  void add(std::size_t number) {
    const MovedTensor& tensor = plan_.tensors[number];
    const std::vector<Copies> sources = copies_of(tensor.from);
    for (std::size_t a = 0; a < sources.size(); ++a) {
      for (std::size_t b = 0; b < a; ++b) {
        require(
            !common(sources[a].box, sources[b].box),
            "Tensor {} of a move lies in boxes {} and {}, which share a part only; boxes of two ranks must be the same or "
            "disjoint.",
            number, text(sources[a].box), text(sources[b].box));
      }
    }
    for (const Copies& wanted : copies_of(tensor.to)) {
      std::int64_t found = 0;
      for (const Copies& source : sources) {
        const auto piece = common(source.box, wanted.box);
        if (!piece) continue;
        found += piece->elements();
        bring(static_cast<int>(number), *piece, source.ranks, wanted.ranks);
      }
      require(found == wanted.box.elements(), "Tensor {} of a move: no rank has {} of the {} elements of {} for rank {}.",
              number, wanted.box.elements() - found, wanted.box.elements(), text(wanted.box), wanted.ranks.front());
    }
  }

  void finish() {
    for (std::vector<MoveBlock>& blocks : of_step_) {
      for (std::vector<MoveBlock>& exchange : bounded(std::move(blocks))) plan_.phases.push_back(std::move(exchange));
    }
  }

 private:
  int node(int rank) const { return nodes_.empty() ? 0 : nodes_[static_cast<std::size_t>(rank)]; }
  // A piece goes to all targets that lack it in three steps: a part of it to each of them; every part once to each node
  // whose ranks have not got it; and within nodes to those that still lack it.
  void bring(int tensor, const Box& piece, const std::vector<int>& holders, const std::vector<int>& targets) {
    std::vector<int> lacking;
    for (const int target : targets) {
      if (std::find(holders.begin(), holders.end(), target) == holders.end()) {
        lacking.push_back(target);
      } else {
        of_step_[0].push_back({tensor, piece, target, target, false});
      }
    }
    if (lacking.empty()) return;
    std::map<int, std::vector<int>> on_node;
    for (const int target : lacking) on_node[node(target)].push_back(target);
    const std::vector<Box> parts = cut(piece, static_cast<int>(lacking.size()));
    for (std::size_t p = 0; p < parts.size(); ++p) {
      const int first = lacking[p];
      const std::vector<Box> sent = send(tensor, parts[p], holders, first, static_cast<int>(lacking.size()));
      const bool is_quantized = plan_.tensors[static_cast<std::size_t>(tensor)].format != QuantizedFormat::none;
      const auto pass_on = [&](std::size_t step, int from, int to) {
        for (const Box& box : is_quantized ? sent : std::vector<Box>{parts[p]}) {
          of_step_[step].push_back({tensor, box, from, to, true});
        }
      };
      for (const auto& [number, ranks] : on_node) {
        int holder = first;
        if (number != node(first)) {
          holder = ranks[p % ranks.size()];
          pass_on(1, first, holder);
        }
        for (const int target : ranks) {
          if (target != holder) pass_on(2, holder, target);
        }
      }
    }
  }

  // Holders on the target's node send, all if there are none; in turn, so that all send about equally much. Returns the
  // boxes of the blocks.
  std::vector<Box> send(int tensor, const Box& part, const std::vector<int>& holders, int target, int targets) {
    std::vector<int> near;
    std::copy_if(holders.begin(), holders.end(), std::back_inserter(near),
                 [&](int rank) { return node(rank) == node(target); });
    if (near.empty()) near = holders;
    MoveBlock block{tensor, part, near.front(), target, false};
    const int shares =
        static_cast<int>(std::min<std::int64_t>(static_cast<int>(near.size()) / targets, plan_.bytes(block) / least_share));
    std::vector<Box> boxes = cut(part, shares);
    for (const Box& share : boxes) {
      block.box = share;
      block.source = near[turn_++ % near.size()];
      of_step_[0].push_back(block);
    }
    return boxes;
  }

  // The block in pieces that fit into the buffers; equal boxes have equal pieces.
  std::vector<Box> pieces(MoveBlock block) const {
    if (plan_.bytes(block) <= most_ || block.box.elements() <= 1) return {block.box};
    const QuantizedFormat format = plan_.tensors[static_cast<std::size_t>(block.tensor)].format;
    const std::int64_t room = most_ - (plan_.is_quantized(block) ? record_bytes(format) : 0);  // parts end in whole records
    const auto parts = static_cast<int>((plan_.bytes(block) + room - 1) / room);
    std::vector<Box> result;
    for (const Box& part : cut(block.box, parts)) {
      block.box = part;
      const std::vector<Box> its = pieces(block);
      result.insert(result.end(), its.begin(), its.end());
    }
    return result;
  }

  // The blocks in as many exchanges as the buffers of their ranks ask for, each in the first that has room for it.
  std::vector<std::vector<MoveBlock>> bounded(std::vector<MoveBlock> blocks) const {
    if (most_ == 0) return {std::move(blocks)};
    std::vector<std::vector<MoveBlock>> result;
    std::vector<std::vector<std::int64_t>> used;  // [exchange][rank]
    for (const MoveBlock& whole_block : blocks) {
      for (const Box& part : pieces(whole_block)) {
        MoveBlock block = whole_block;
        block.box = part;
        const auto source = static_cast<std::size_t>(block.source), target = static_cast<std::size_t>(block.target);
        const std::int64_t needs = source == target ? 0 : plan_.bytes(block);
        std::size_t e = 0;
        while (e < used.size() && std::max(used[e][source], used[e][target]) + needs > most_) ++e;
        if (e == used.size()) {
          used.emplace_back(static_cast<std::size_t>(plan_.ranks), 0);
          result.emplace_back();
        }
        used[e][source] += needs;
        used[e][target] += needs;
        result[e].push_back(block);
      }
    }
    return result;
  }

  MovePlan& plan_;
  const std::vector<int>& nodes_;
  std::int64_t most_;
  std::vector<std::vector<MoveBlock>> of_step_ = std::vector<std::vector<MoveBlock>>(3);
  std::size_t turn_ = 0;
};

}  // namespace

MovePlan plan_move(std::vector<MovedTensor> tensors, int ranks, const std::vector<int>& nodes,
                   std::int64_t most_buffer_bytes) {
  require(nodes.empty() || nodes.size() == static_cast<std::size_t>(ranks), "A move of {} ranks got the nodes of {}.", ranks,
          nodes.size());
  require(most_buffer_bytes == 0 || most_buffer_bytes >= least_buffer,
          "A move needs buffers of at least {} bytes, not {}; 0 sets no bound.", least_buffer, most_buffer_bytes);
  MovePlan plan{ranks, std::move(tensors), {}};
  Planner planner(plan, nodes, most_buffer_bytes);
  for (std::size_t number = 0; number < plan.tensors.size(); ++number) {
    check_division(plan.tensors[number].from, plan.tensors[number], number, ranks, "before it");
    check_division(plan.tensors[number].to, plan.tensors[number], number, ranks, "behind it");
    const MovedTensor& tensor = plan.tensors[number];
    require(tensor.format == QuantizedFormat::none || tensor.dtype == DType::f32 || tensor.dtype == DType::bf16 ||
                tensor.dtype == DType::f16,
            "Tensor {} of a move is of {}, which does not travel in {}: formats are of f32, bf16 and f16.", number,
            name(tensor.dtype), name(tensor.format));
    planner.add(number);
  }
  planner.finish();
  std::erase_if(plan.phases, [](const std::vector<MoveBlock>& phase) { return phase.empty(); });
  return plan;
}

}  // namespace stretto
