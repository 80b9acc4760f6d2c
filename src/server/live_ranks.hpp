#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "server/mailbox.hpp"
#include "server/served_layout.hpp"
#include "stretto/error.hpp"

namespace stretto {

class JobControl;

// The ranks of a server set that are not lost, and their messages. A rank keeps the number that it had at first.
class LiveRanks {
 public:
  // Collective. layout must outlive the object.
  LiveRanks(const Communicator& ranks, const ServedLayout& layout);

  int rank() const { return rank_; }
  int size() const { return ranks_.size(); }
  bool has(int rank) const { return numbers_[static_cast<std::size_t>(rank)] >= 0; }
  std::vector<int> lost() const;                                                      // since the beginning
  int rank_of(int number) const { return names_[static_cast<std::size_t>(number)]; }  // of a rank in communicator()
  bool is_first() const { return ranks_.rank() == 0; }
  const Communicator& communicator() const { return ranks_; }

  // These work as Mailbox's do, but errors name the lost rank, and a message to a rank that is lost is dropped.
  void send(int to, const MessageHead& head, const Tensor& bytes = {}, std::optional<int> priority = {});
  bool has_sent(std::uint64_t request) const { return mailbox_->has_sent(request); }
  ReceivedMessage receive();
  std::optional<ReceivedMessage> receive_unless(const std::function<bool()>& enough);
  std::optional<ReceivedMessage> try_receive();
  bool is_connected() const { return mailbox_.has_value(); }  // not between shrink() and open()
  void send_all();
  void close(int rank) { mailbox_->close(number_of(rank)); }
  bool is_open(int rank) const { return has(rank) && mailbox_->is_open(number_of(rank)); }
  int open_workers() const;
  bool any_server_open() const;  // other than this one
  Mailbox::Traffic traffic() const;
  Mailbox::Queue queue() const { return mailbox_->queue(); }

  // Collective over the ranks that are left: Job::shrink(), whose errors are final. All messages under way are lost.
  void shrink();
  // Collective, behind shrink(). If it fails because more are lost, begin again with shrink(); no other call is valid then.
  void open();
  // The lost rank that an error of the job names, if it names one.
  std::optional<int> lost_by(const Error& error) const;
  // The sentence of such an error, with the number that the rank had at first: a job that has shrunk numbers its ranks anew.
  std::string with_own_number(const Error& error) const;

 private:
  int number_of(int rank) const { return numbers_[static_cast<std::size_t>(rank)]; }  // in the communicator
  std::vector<int> partners() const;
  const JobControl& job() const;

  const ServedLayout& layout_;
  Communicator ranks_;
  int rank_;
  std::vector<int> names_;    // by number in the communicator: the rank at first
  std::vector<int> numbers_;  // the inverse; -1: lost
  std::optional<Mailbox> mailbox_;
  Mailbox::Traffic earlier_;  // of mailboxes before
};

}  // namespace stretto
