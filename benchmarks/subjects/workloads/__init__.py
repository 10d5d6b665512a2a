"""The workloads of the section `race`: data that packages bring, a model, and a budget of steps."""
