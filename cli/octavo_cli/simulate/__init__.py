"""What `octavo simulate` is made of: workloads as rows, the simulator's process, figures and pictures."""
