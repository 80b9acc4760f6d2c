#pragma once
#include "transport/bootstrap/packing.hpp"

// What a rank asks another about itself, and the answer: the bodies of two kinds of frames.
namespace stretto {

struct Question {
  int from = 0, about = 0;  // ranks
  RankAccount answer;       // of a question only the operation that it asks for
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

// Throws Error(internal) if the bytes, which come from another rank of `size`, are no question.
inline Question question_of(const Bytes& bytes, int size) {
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
  std::vector<int> ranks = question.answer.waits_for;
  for (const std::vector<int>& more : {ends, question.answer.held_up_by})
    ranks.insert(ranks.end(), more.begin(), more.end());
  for (const int rank : ranks) ensure(rank >= 0 && rank < size, "a question of it is about rank {}, of {}.", rank, size);
  return question;
}

}  // namespace stretto
