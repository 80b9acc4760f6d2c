#pragma once
#include <algorithm>

#include "transport/bootstrap/packing.hpp"

// A rank's question to another rank about what that is doing, and the answer: the bodies of two kinds of frames.
namespace stretto {

struct Question {
  int from = 0, about = 0;  // ranks
  RankAccount answer;       // in a question, only `asked` is set
};

inline Bytes bytes_of(const Question& question) {
  const RankAccount& answer = question.answer;
  const std::vector<std::uint64_t> operations{answer.asked.series, answer.asked.number, answer.held_up_in.series,
                                              answer.held_up_in.number};
  return packed({bytes_of(std::vector<int>{question.from, question.about}), bytes_of(answer.waits_for), bytes_of(operations),
                 bytes_of(std::vector<char>(answer.text.begin(), answer.text.end())),
                 bytes_of(std::vector<char>(answer.held_up_text.begin(), answer.held_up_text.end())),
                 bytes_of(answer.held_up_by)});
}

// Throws Error(internal) if the bytes, which come from another rank, are no question.
inline Question question_of(const Bytes& bytes) {
  const std::vector<Bytes> parts = unpacked(bytes, 6);
  const std::vector<int> ends = values_of<int>(parts[0]);
  const std::vector<std::uint64_t> operations = values_of<std::uint64_t>(parts[2]);
  ensure(ends.size() == 2 && operations.size() == 4, "a question or an answer of it is truncated.");
  const auto text = [&](int part) {
    const std::vector<char> letters = values_of<char>(parts[part]);
    return std::string(letters.begin(), letters.end());
  };
  Question question{ends[0], ends[1], {text(3), values_of<int>(parts[1])}};
  question.answer.asked = {operations[0], operations[1]};
  question.answer.held_up_in = {operations[2], operations[3]};
  question.answer.held_up_text = text(4);
  question.answer.held_up_by = values_of<int>(parts[5]);
  return question;
}

// Whether all ranks in it are below `size`. A rank of a job that has shrunk may still answer with numbers of the larger job.
inline bool fits(const Question& question, int size) {
  const auto fit = [&](const std::vector<int>& ranks) {
    return std::all_of(ranks.begin(), ranks.end(), [&](int rank) { return rank >= 0 && rank < size; });
  };
  return fit({question.from, question.about}) && fit(question.answer.waits_for) && fit(question.answer.held_up_by);
}

}  // namespace stretto
