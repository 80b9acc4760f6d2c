// Measures by ZeroMQ, ps-lite's transport, what server_speed measures by servers: two workers push their values to a server,
// which adds them and sends each the sum. Processes of one host, over ipc://. Prints bytes and the median of the slower
// worker's times.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr int workers = 2;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

void check(int status, const char* what) {
  if (status >= 0) return;
  std::fprintf(stderr, "error: %s: %s\n", what, zmq_strerror(zmq_errno()));
  std::_Exit(1);
}

void serve(void* context, const std::string& address, std::size_t bytes, int rounds) {
  void* const socket = zmq_socket(context, ZMQ_ROUTER);
  check(zmq_bind(socket, address.c_str()), "zmq_bind");
  std::vector<float> values(bytes / sizeof(float));
  for (int round = 0; round < rounds; ++round) {
    std::vector<std::string> from;
    for (int w = 0; w < workers; ++w) {
      char identity[256];
      const int length = zmq_recv(socket, identity, sizeof identity, 0);
      check(length, "zmq_recv");
      from.emplace_back(identity, static_cast<std::size_t>(length));
      zmq_msg_t message;
      zmq_msg_init(&message);
      check(zmq_msg_recv(&message, socket, 0), "zmq_msg_recv");
      const auto* const pushed = static_cast<const float*>(zmq_msg_data(&message));
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = w == 0 ? pushed[i] : values[i] + pushed[i];
      zmq_msg_close(&message);
    }
    for (const std::string& identity : from) {
      check(zmq_send(socket, identity.data(), identity.size(), ZMQ_SNDMORE), "zmq_send");
      check(zmq_send(socket, values.data(), bytes, 0), "zmq_send");
    }
  }
  zmq_close(socket);
}

double work(void* context, const std::string& address, std::size_t bytes, int rounds) {
  void* const socket = zmq_socket(context, ZMQ_DEALER);
  check(zmq_connect(socket, address.c_str()), "zmq_connect");
  std::vector<char> pushed(bytes), pulled(bytes);
  std::vector<double> times;
  for (int round = 0; round < rounds; ++round) {
    const double begin = now();
    check(zmq_send(socket, pushed.data(), bytes, 0), "zmq_send");
    check(zmq_recv(socket, pulled.data(), bytes, 0), "zmq_recv");
    if (round >= 2) times.push_back(now() - begin);
  }
  zmq_close(socket);
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = 2 + (argc > 1 ? std::atoi(argv[1]) : 100);
  for (int i = 2; i < argc; ++i) {
    const auto bytes = static_cast<std::size_t>(std::atoll(argv[i]));
    char directory[] = "/tmp/zmq-server-XXXXXX";
    if (mkdtemp(directory) == nullptr) return 1;
    const std::string address = std::string("ipc://") + directory + "/socket";
    auto* const seconds = static_cast<double*>(
        mmap(nullptr, workers * sizeof(double), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    for (int w = 0; w < workers; ++w) {
      if (fork() != 0) continue;
      void* const context = zmq_ctx_new();
      seconds[w] = work(context, address, bytes, rounds);
      zmq_ctx_term(context);
      std::_Exit(0);
    }
    void* const context = zmq_ctx_new();
    serve(context, address, bytes, rounds);
    for (int w = 0; w < workers; ++w) wait(nullptr);
    zmq_ctx_term(context);
    unlink((std::string(directory) + "/socket").c_str());
    rmdir(directory);
    std::printf("{\"bytes\": %zu, \"seconds\": %.9f}\n", bytes, std::max(seconds[0], seconds[1]));
    std::fflush(stdout);
  }
}
